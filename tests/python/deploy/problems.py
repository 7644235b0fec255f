"""What was found wrong."""

import sys


class Problems:
    def __init__(self) -> None:
        self.found: list[str] = []

    def expect(self, met: bool, problem: str) -> None:
        if not met:
            self.found.append(problem)

    def end(self) -> int:
        for problem in self.found:
            print(f"WRONG: {problem}", file=sys.stderr)
        return 1 if self.found else 0
