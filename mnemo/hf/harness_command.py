"""lm-evaluation-harness's own command, which then also knows the model "mnemo".

python -m mnemo.hf.harness_command --model mnemo --model_args pretrained=tuned/model --tasks wikitext
"""

from __future__ import annotations

import mnemo.hf.harness  # noqa: F401  (registers the model)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
