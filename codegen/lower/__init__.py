"""What all backends share: the question to a kernel, and how products and loops become C.

May import `codegen.text`, `smelt.ops`, `smelt.ir` and `targets`; knows no backend.
"""
