"""The service's pages, its answers for other programs, and the server that gives them."""
