"""The server's side: which nodes are clients, what they are asked, and when a round goes on; what `bifl server` does."""
