"""The paper's tables and figures by name: studies made of cells, each run once and kept. `bifl reproduce` finds them in a clone."""
