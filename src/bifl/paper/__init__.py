"""The paper's tables and figures by name: studies made of cells, each run once and kept."""
