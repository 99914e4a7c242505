"""What a worker process shows of itself over HTTP: liveness, readiness, metrics."""
