"""``python -m scorch``."""

import sys

from scorch._src.cli.main import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
