"""Run any step in torch operations, by joins, where no compiler can be had."""
