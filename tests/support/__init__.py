"""What the tests share: the leak guard, scenarios in child processes."""
