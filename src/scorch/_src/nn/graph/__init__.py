"""Graph layers with the parameters and the results of PyG's."""
