"""One step of training: PPO on what the plans earned."""
