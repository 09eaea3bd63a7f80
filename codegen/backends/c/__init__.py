"""Backend `c`: portable C99 kernels that serve every operator; the fallback of all others."""
