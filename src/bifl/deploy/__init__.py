"""The same experiments between real machines, on Flower (docs/deploy.md).

`server_app` and `client_app` are the two apps that `bifl server`, `bifl client` and `flwr run` start; the same modules put our
algorithms into an app of your own. `compress` brings only the one-bit uploads to an app with its own network and strategy.
"""
