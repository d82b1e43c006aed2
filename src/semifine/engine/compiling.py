"""A network that is compiled where that is possible, and goes on as it is where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from semifine.errors import exhausted_memory


def compile_network(network: nn.Module, say: Callable[[str], None]) -> None:
    """Has a network compiled when it is first called; its weights and its plain form stay what they are."""
    from torch._functorch import config  # only now, like all of the compiler: runs without it start sooner

    # Else the backward pass would be compiled, and fail, when half of a step is done.
    config.force_non_lazy_backward_lowering = True
    try:
        network.compile(dynamic=False)
    except RuntimeError as error:  # a Python or a system that torch.compile does not know yet
        say(_sentence(error))
        return
    network._compiled_call_impl = CompiledCall(network, say)


class CompiledCall:
    """Calls the compiled form of a network; where it cannot be made, says so once and gives way to the plain one.

    Each kind of batch is compiled when it first comes, so this may happen at any call; but other errors than those of
    the compiler only mean a compiler that does not work when nothing has worked yet.
    """

    def __init__(self, network: nn.Module, say: Callable[[str], None]) -> None:
        self._network = network
        self._compiled = network._compiled_call_impl
        self._say = say
        self._has_worked = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        assert self._compiled is not None
        try:
            output = self._compiled(*arguments, **named)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException

            means_no_compiler = not self._has_worked and not exhausted_memory(error)
            if not isinstance(error, TorchDynamoException) and not means_no_compiler:
                raise
            self._network._compiled_call_impl = None
            self._say(_sentence(error))
            return self._network(*arguments, **named)
        self._has_worked = True
        return output


def _sentence(error: Exception) -> str:
    cause = getattr(error, "inner_exception", error)
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"The network cannot be compiled ({reason}); training goes on uncompiled."
