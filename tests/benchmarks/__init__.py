"""What benchmarks say. A folder called `bench` would hide the package of that name here."""
