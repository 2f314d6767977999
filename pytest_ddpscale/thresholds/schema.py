"""The JSON schema of thresholds.yaml, so that editors complete and check it."""

from __future__ import annotations

import json

from pytest_ddpscale.thresholds.model import Thresholds


def json_schema_text() -> str:
    """The schema as it is shipped beside thresholds.yaml."""
    schema = Thresholds.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "pytest-ddpscale thresholds"
    workload = schema["$defs"]["Workload"]
    # A workload is called what it is listed under; the loader fills the name in.
    workload["required"].remove("name")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
