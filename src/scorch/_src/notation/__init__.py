"""Index notation: parse, print and differentiate statements such as ``C[i,k] = sum(j, A[i,j] * B[j,k])``."""
