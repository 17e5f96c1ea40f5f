"""Networks: which weights they compute with (`forward`), what they look like (`models`), how they lie flat (`flat`)."""
