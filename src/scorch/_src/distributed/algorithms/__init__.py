"""The algorithms of products over processes, and which of them a tensor uses."""
