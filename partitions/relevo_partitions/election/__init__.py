"""Who should lead: the cluster in ZooKeeper, its nodes, their claims, and who belongs where."""
