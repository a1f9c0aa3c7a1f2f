"""A stand-in for Triton's CPU backend, which stock Triton has not: vLLM's model runner asks for one by name.

It compiles nothing. With TRITON_INTERPRET=1 kernels run in Triton's interpreter, slowly, which is all that tests need.
"""
