"""The same experiments between real machines, on Flower (docs/deploy.md).

`bifl.flower.server` and `bifl.flower.client` are the two apps that `bifl server`, `bifl client` and `flwr run` start; the same
modules put our algorithms into an app of your own. `bifl.flower.compress` brings only the one-bit uploads to an app with its own
network and strategy.
"""
