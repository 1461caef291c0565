"""What torch does with functions: derivatives forward, ``torch.func``, ``gradcheck``."""
