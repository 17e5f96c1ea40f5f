"""What a person sees: terminal, tables, pictures."""

PLAIN_WIDTH = 100  # columns where there is no terminal to ask
