"""Training of the policy: pretraining on many graphs, finetuning on one. Imports JAX."""
