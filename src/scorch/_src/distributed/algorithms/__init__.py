"""The communication algorithms of products, and which of them a tensor uses."""
