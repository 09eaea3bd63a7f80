"""Code that tests share. This package contains no tests."""
