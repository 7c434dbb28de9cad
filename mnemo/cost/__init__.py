"""What a model or a training run costs: parameters, FLOPs, bytes, time and energy."""
