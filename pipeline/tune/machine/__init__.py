"""The rig on a real machine: loaders, steps and the device, opened when asked for and closed together."""
