"""What type checkers say of users' code."""
