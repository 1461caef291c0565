"""Linear algebra by sparse algorithms: equations, least squares, determinants, eigenvalues and norms."""
