"""Operations by oneDNN and by kernels of Baton's own, on a CPU."""
