"""Checks what is in deploy/: the chart through Helm's own library, what it renders against the
Kubernetes API's schemas and against itself, and the compose file against the schema of such
files. Prints a line for each thing checked; exits with 1 when one is wrong.

    python tests/python/deploy chart|compose
"""

import sys

from chart import check_chart
from compose import check_compose
from problems import Problems


def main() -> int:
    problems = Problems()
    for part in sys.argv[1:]:
        {"chart": check_chart, "compose": check_compose}[part](problems)
    return problems.end()


if __name__ == "__main__":
    sys.exit(main())
