"""The exchanges that a round is made of, one module each (`bifl.exchanges.exchange`)."""
