"""Operations by Triton kernels, on CUDA."""
