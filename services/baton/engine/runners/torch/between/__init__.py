"""What a layer does between its products, on CUDA in one launch each: a small step costs its launches, not its bytes.

`kernel` holds the Triton kernels, `launch` calls them on tensors.
"""
