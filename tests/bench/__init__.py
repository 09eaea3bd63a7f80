"""What benchmarks say."""
