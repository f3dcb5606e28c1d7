"""What the lowerings share: LLVM IR that does not depend on the target, and tables that need no target's compiler."""
