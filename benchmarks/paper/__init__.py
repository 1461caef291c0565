"""The experiments of the Scorch paper, one script a figure, and some that it does not have.

python -m benchmarks.paper.figure5_gcn --data DIR
python -m benchmarks.paper.figure6_autoencoder --data DIR
python -m benchmarks.paper.figure7_bigbird --data DIR
python -m benchmarks.paper.figure8_kernels --data DIR
python -m benchmarks.paper.beyond --data DIR
"""
