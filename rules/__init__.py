"""The rules: `tables.sql` and one SQL file a fault, in a folder a family."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""Where the bundled rules lie."""

TABLES: Final = FOLDER / "tables.sql"
"""The query that builds the tables which the rules speak of."""
