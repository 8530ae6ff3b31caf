"""The rule by which the shards change weights, as groups of torch.optim have it."""

from dataclasses import dataclass

# The names of a rule's numbers in a group, in the order of the rule's text. The first is the rate.
_NUMBERS = {"sgd": ("lr",), "momentum": ("lr", "momentum"), "adagrad": ("lr", "eps"),
            "adam": ("lr", "beta1", "beta2", "eps")}


@dataclass(frozen=True)
class Rule:
    """Holds a rule: its text with all its numbers, "momentum:0.1:0.9", its word and its numbers."""

    text: str
    word: str
    numbers: tuple

    @classmethod
    def of_text(cls, text):
        """Reads the text of option `store`, which the library has completed.

        Raises  ValueError: none, or a rule that this file does not know.
        """
        word, *numbers = str(text).split(":")
        if word not in _NUMBERS or len(numbers) != len(_NUMBERS[word]):
            raise ValueError(f"store '{text}' is none of {', '.join(f'{one}:RATE' for one in _NUMBERS)}")
        return cls(str(text), word, tuple(float(number) for number in numbers))

    @property
    def has_state(self):
        """Whether the shards keep more than the weights."""
        return self.word != "sgd"

    def group(self):
        """Returns the defaults of a group, by torch.optim's names."""
        values = dict(zip(_NUMBERS[self.word], self.numbers))
        if self.word == "adam":
            values["betas"] = (values.pop("beta1"), values.pop("beta2"))
        return values

    def check(self, group):
        """Raises  ValueError: the group asks for values that the rule does not have."""
        own = self.group()
        for name, value in group.items():
            if name in ("params", "param_names", "initial_lr"):  # the last is a scheduler's note
                continue
            if name not in own:
                if value:
                    raise ValueError(f"the shards' rule {self.text} has no {name}")
            elif value != own[name]:
                raise ValueError(f"a group has {name} {value}, and the shards' rule is {self.text}: it is one for all "
                                 "parameters of a job, and does not change. Give other parameters a StoreOptimizer with "
                                 "a job of its own; for another rate make one with store_begin=\"saved\"")
