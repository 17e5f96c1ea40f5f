"""Networks: which weights they compute with (`forward`), what they look like (`models`), how they lie flat (`network`), what
computes them (`engine`).
"""
