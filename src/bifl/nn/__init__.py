"""Networks: what they look like (`models`), how they lie flat (`network`), what computes them (`compute`, `fast`)."""
