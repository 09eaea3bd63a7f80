"""What tests share; no tests."""
