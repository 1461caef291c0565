"""Iterative methods, which need only products with the matrix: ``cg``, ``gmres`` and ``lsmr``.

Each stops when the residual of every column is ``tol`` times its right-hand side, by the residual itself and
not its recurrence, and raises ``ConvergenceError`` when it does not get there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.ops.linalg.linear_operators import Product, as_columns, as_product, scipy_linalg, tolerance
from scorch._src.ops.linalg.without_gradient import without_gradient
from scorch.errors import ArgumentError, ConvergenceError, LinAlgError, ShapeError, kind_of

RESTART_VECTORS = 50  # of gmres
Callback = Callable[[torch.Tensor], object]
Scalars = float | torch.Tensor  # of one column, or one for each of several
USE_SOLVE = "use torch.linalg.solve for gradients, or detach() the operands"
Checked = tuple[torch.Tensor, torch.Tensor, Product, Product, float, int]


@suggests_keywords
@without_gradient(USE_SOLVE)
def cg(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
) -> torch.Tensor:
    """Solve ``A @ x = b`` by the conjugate gradient method; ``A`` is symmetric positive definite.

    It is not differentiable: use ``torch.linalg.solve`` for gradients.

    Args:
        A: a matrix, or a function that multiplies by it.
        b: the right-hand side, with one or several columns.
        x0: the initial guess; zeros without it.
        tol: the tolerance relative to the norm of ``b``; 1e-10, and 1e-5 in float32.
        maxiter: the maximum number of iterations.
        M: a preconditioner, an approximate inverse of ``A``: a matrix or a function. It must be symmetric
            positive definite too; an incomplete LU factorization, such as SciPy's ``spilu``, is not: pass it
            to ``gmres``.
        callback: a function that is called with the current solution after each iteration; the next one
            changes it in place.

    Returns:
        The solution, with the shape of ``b``.

    Raises:
        LinAlgError: the matrix is not positive definite, or has non-finite values.
        ConvergenceError: the tolerance was not reached.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.tensor([[4.0, 1.0], [1.0, 3.0]]), format="csr")
        >>> scorch.linalg.cg(A, torch.tensor([1.0, 2.0]))
        tensor([0.0909, 0.6364])
    """
    columns, x, times, precondition, limit, max_steps = _check("cg", A, b, x0, tol, maxiter, M, callback)
    target_norm = limit * columns.norm(dim=0)
    steps = 0
    while True:
        residual = columns - times(x) if steps or x0 is not None else columns.clone()
        norm_before, first_step = residual.norm(dim=0), steps
        if bool((norm_before <= target_norm).all()):
            return x
        steps = _conjugate_steps(times, precondition, x, residual, target_norm, steps, max_steps, callback)
        norm_after = (columns - times(x)).norm(dim=0)
        if bool((norm_after <= target_norm).all()):
            return x
        if steps >= max_steps or steps == first_step or bool((norm_after >= 0.5 * norm_before).all()):
            raise _not_converged("cg", steps, norm_after, columns, limit, has_preconditioner=M is not None)


def _conjugate_steps(
    times: Product,
    precondition: Product,
    x: torch.Tensor,
    residual: torch.Tensor,
    target_norm: torch.Tensor,
    steps: int,
    max_steps: int,
    callback: Callback | None,
) -> int:
    """Update ``x`` until the recurrence of the residual reaches ``target_norm``; return the steps so far.

    Vectors are updated in place, and the scalars of one column are Python's: for small matrices, calls of
    torch take as long as the products.
    """
    z = precondition(residual)
    direction = z.clone()
    rho = _dot(residual, z)
    targets = _as_list(target_norm)
    while steps < max_steps and not _is_below(residual, targets):
        image = times(direction)
        curvature = _dot(direction, image)
        _check_curvature(_as_list(curvature))
        step = _divide(rho, curvature)
        _add_multiple(x, step, direction)
        _add_multiple(residual, -step, image)
        z = precondition(residual)
        rho, old = _dot(residual, z), rho
        direction.mul_(_divide(rho, old)).add_(z)
        steps += 1
        if callback is not None:
            callback(x)
    return steps


def _is_below(residual: torch.Tensor, targets: Sequence[float]) -> bool:
    """Whether the norms of all columns are at most ``targets``."""
    norms = _as_list(torch.linalg.vector_norm(residual, dim=0))
    return all(norm <= target for norm, target in zip(norms, targets, strict=True))


def _check_curvature(curvature: Sequence[float]) -> None:
    if not all(map(math.isfinite, curvature)):
        raise LinAlgError("cg: the matrix or the right-hand side has non-finite values")
    if min(curvature, default=0.0) < 0:
        raise LinAlgError(
            "cg: the matrix is not positive definite; use scorch.linalg.gmres or torch.linalg.solve"
        )


def _as_list(scalars: Scalars) -> list[float]:
    if isinstance(scalars, float):
        return [scalars]
    return scalars.tolist() if scalars.dim() else [scalars.item()]


def _divide(numerator: Scalars, denominator: Scalars) -> Scalars:
    """Divide, with a result of zero where the denominator is, as for columns that have converged."""
    if isinstance(denominator, float):
        return numerator / denominator if denominator else 0.0
    return torch.where(denominator == 0, 0, numerator / denominator)


def _add_multiple(target: torch.Tensor, factor: Scalars, other: torch.Tensor) -> None:
    """Add ``factor * other`` in place."""
    if isinstance(factor, float):
        target.add_(other, alpha=factor)
    else:
        target.addcmul_(other, factor.to(other.dtype))


@suggests_keywords
@without_gradient(USE_SOLVE)
def gmres(
    A: Any,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    M: Any = None,
    restart: int = RESTART_VECTORS,
    callback: Callback | None = None,
) -> torch.Tensor:
    """Solve ``A @ x = b`` for any square matrix by restarted GMRES.

    It is not differentiable: use ``torch.linalg.solve`` for gradients.

    Args:
        A, b, x0, tol: as for ``cg``.
        M: a preconditioner, an approximate inverse of ``A``: a matrix or a function.
        maxiter: the maximum number of restarts.
        restart: the number of iterations between restarts.
        callback: a function that is called with the current solution, of one column, after each restart.

    Returns:
        The solution, with the shape of ``b``.

    Raises:
        ShapeError: the matrix is not square, or does not match ``b``.
        ConvergenceError: the tolerance was not reached within ``maxiter`` restarts.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.tensor([[2.0, 1.0], [0.0, 4.0]]), format="csr")
        >>> scorch.linalg.gmres(A, torch.tensor([4.0, 8.0])).round()
        tensor([1., 2.])
    """
    checked = _check("gmres", A, b, x0, tol, maxiter, M, callback)
    columns, start, times, precondition, limit, max_restarts = checked

    def solve(b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        target_norm = limit * b.norm()
        residual = b - times(x)
        for restarts in range(max_restarts + 1):
            norm = residual.norm()
            if bool(norm <= target_norm):
                return x
            if restarts == max_restarts:
                break
            max_products = min(restart, b.shape[0])
            x = x + precondition(_least_residual(times, precondition, residual, target_norm, max_products))
            if callback is not None:
                callback(x)
            residual = b - times(x)
            if not bool(residual.norm() < 0.9999 * norm):
                break
        raise _not_converged("gmres", restarts, residual.norm(), b, limit, has_preconditioner=M is not None)

    return solve_by_column(solve, columns, start)


def solve_by_column(solve: Callable[..., torch.Tensor], *sides: torch.Tensor) -> torch.Tensor:
    """Apply ``solve`` to each column of tensors that have one or several."""
    if sides[0].dim() == 1:
        return solve(*sides)
    columns = zip(*(side.unbind(1) for side in sides), strict=True)
    return torch.stack([solve(*column) for column in columns], 1)


def _least_residual(
    times: Product,
    precondition: Product,
    residual: torch.Tensor,
    target_norm: torch.Tensor,
    max_products: int,
) -> torch.Tensor:
    """Find, in the span of ``max_products`` products, what brings ``A @ M @ y`` closest to the residual."""
    norm = residual.norm()
    V = residual.new_zeros(max_products + 1, residual.shape[0])
    H = residual.new_zeros(max_products + 1, max_products)
    V[0] = residual / norm
    target = residual.new_zeros(max_products + 1)
    target[0] = norm

    def solve_so_far(count: int) -> Any:
        return torch.linalg.lstsq(H[: count + 1, :count], target[: count + 1, None]).solution[:, 0]

    count = 0
    for count in range(1, max_products + 1):
        w = times(precondition(V[count - 1]))
        for _ in range(2):  # reorthogonalise
            h = V[:count].conj() @ w
            w = w - h @ V[:count]
            H[:count, count - 1] += h
        length = w.norm()
        H[count, count - 1] = length
        if not bool(length.isfinite()):  # some versions of torch end lstsq with an internal error
            return torch.full_like(w, torch.nan)
        if bool(length <= torch.finfo(w.dtype).eps * H[:, count - 1].norm()):
            break  # the space holds the solution
        V[count] = w / length
        if count % 10 == 0:
            y = solve_so_far(count)
            if bool((target[: count + 1] - H[: count + 1, :count] @ y).norm() <= 0.5 * target_norm):
                break
    return torch.mv(V[:count].T, solve_so_far(count))


def lsmr(
    times: Product, transposed: Product, b: torch.Tensor, columns: int, limit: float, max_steps: int
) -> torch.Tensor:
    """Find the ``x`` of least norm that brings ``A @ x`` closest to ``b`` (Fong and Saunders, 2011)."""
    x = b.new_zeros(columns)
    beta = float(b.norm())
    if beta == 0:
        return x
    u = b / beta
    v = transposed(u)
    alpha = float(v.norm())
    if alpha == 0:
        return x
    v = v / alpha
    size_b, frobenius = beta, alpha**2
    alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar = alpha, alpha * beta, 1.0, 1.0, 1.0, 0.0
    h, h_bar = v.clone(), torch.zeros_like(x)
    for _ in range(max_steps):
        u = times(v) - alpha * u
        beta = float(u.norm())
        u = u / beta if beta else u
        v = transposed(u) - beta * v
        alpha = float(v.norm())
        v = v / alpha if alpha else v
        frobenius += alpha**2 + beta**2
        rho_old, rho_bar_old = rho, rho_bar
        rho = math.hypot(alpha_bar, beta)
        c, s = alpha_bar / rho, beta / rho
        theta, alpha_bar = s * alpha, c * alpha
        theta_bar, rotated = s_bar * rho, c_bar * rho
        rho_bar = math.hypot(rotated, theta)
        c_bar, s_bar = rotated / rho_bar, theta / rho_bar
        zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
        h_bar = h - (theta_bar * rho / (rho_old * rho_bar_old)) * h_bar
        x = x + (zeta / (rho * rho_bar)) * h_bar
        h = v - (theta / rho) * h
        if abs(zeta_bar) <= limit * math.sqrt(frobenius) * size_b:
            residual = b - times(x)
            size = float(residual.norm())
            is_fitted = size <= limit * size_b
            if is_fitted or float(transposed(residual).norm()) <= 10 * limit * math.sqrt(frobenius) * size:
                return x
        if not alpha or not beta:
            return x  # the space holds the solution
    relative = float((b - times(x)).norm()) / size_b
    raise ConvergenceError(
        f"lstsq did not converge: after {max_steps} iterations the residual is {relative:.1e} of the "
        "right-hand side; use scipy.sparse.linalg.lsqr, or torch.linalg.lstsq of a dense matrix"
    )


def _dot(x: torch.Tensor, y: torch.Tensor) -> Scalars:
    """Return the real inner product of each column.

    ``torch.vdot`` shares even short vectors among threads, and is a hundred times slower on a busy machine.
    """
    product = (x.conj() * y).sum(0)
    product = product.real if product.is_complex() else product
    return product if product.dim() else product.item()


def _check(
    name: str, A: Any, b: Any, x0: Any, tol: Any, maxiter: int | None, M: Any, callback: Any
) -> Checked:
    """Return the columns, a copy of ``x0`` or zeros, both products, and the limits of residual and steps."""
    columns = as_columns(name, b)
    rows = columns.shape[0]
    times = as_product(name, A, columns)
    precondition = torch.clone if M is None else as_product(f"M of {name}", M, columns)
    start = torch.zeros_like(columns)
    if x0 is not None:
        start = as_columns(name, x0, rows, columns, "x0").clone()
    if start.shape != columns.shape:
        raise ShapeError(
            f"{name}: x0 must have the shape of the right-hand side, {tuple(columns.shape)}, but got "
            f"{tuple(start.shape)}"
        )
    if callback is not None and not callable(callback):
        raise ArgumentError(f"{name}: callback must be a function, but got {kind_of(callback)}")
    max_steps = 10 * max(rows, 10) if maxiter is None else maxiter
    return columns, start, times, precondition, tolerance(tol, columns.dtype), max_steps


def _not_converged(
    name: str,
    steps: int,
    residual: torch.Tensor,
    b: torch.Tensor,
    limit: float,
    *,
    has_preconditioner: bool,
) -> ConvergenceError:
    relative = float((residual / b.norm(dim=0).clamp(min=1e-300)).max())
    if not math.isfinite(relative):
        return ConvergenceError(
            f"{name} did not converge: the matrix, the right-hand side, x0 or M has non-finite values, or "
            "the solution has"
        )
    if not has_preconditioner:
        hint = "pass a preconditioner, such as M=scorch.diag(1 / A.diagonal(), format='csr')"
    elif name == "cg":
        hint = "use a better preconditioner M, or scorch.linalg.gmres if it is not positive definite"
    else:
        hint = "use a better preconditioner M"
    installed = " with SciPy installed" if scipy_linalg() is None else ""
    return ConvergenceError(
        f"{name} did not converge: after {steps} iterations the residual is {relative:.1e} of the "
        f"right-hand side, not {limit:.0e}; increase tol or maxiter, {hint}, or use torch.linalg.solve"
        f"{installed}"
    )
