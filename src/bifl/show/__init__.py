"""What a person sees: terminal, tables, pictures."""
