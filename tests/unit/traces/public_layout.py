"""A folder of synthetic traces laid out as the public ones are."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def public_layout(folder: Path) -> Path:
    """Five days of 30 clients (slow, normal and bursty in turn) and one day of 40 functions, in ``folder``."""
    rng = np.random.default_rng(1)
    lines = ["client,window_start_s,rate_rps,iat_cv,pattern,param1,param2"]
    for client in range(30):
        cv, rate = ((0.5, 0.8), (1.5, 2.0), (6.0, 3.0))[client % 3]
        for window in range(720):
            at = rate * (1 + 0.5 * np.sin(window / 144 * 2 * np.pi)) * rng.uniform(0.95, 1.05)
            lines.append(f"{client},{window * 600},{at:.4f},{cv},Gamma,1,1")
    (folder / "servegen").mkdir()
    (folder / "servegen" / "language_m-large_clients_days01-12.csv.gz").write_text("\n".join(lines) + "\n")
    rows = ["RowId,SourceBlob,SourcePath,Multiplicity," + ",".join(map(str, range(1, 1441)))]
    for function in range(40):
        busy = rng.random(1440) < (0.3 if function % 2 else 1.0)
        row = rng.poisson(rng.gamma(1.5, 30, 1440)) * busy
        rows.append(f"row{function},b,p,1," + ",".join(map(str, row)))
    (folder / "azure_functions_2019").mkdir()
    (folder / "azure_functions_2019" / "invocations_day_rows.csv.gz").write_text("\n".join(rows) + "\n")
    return folder
