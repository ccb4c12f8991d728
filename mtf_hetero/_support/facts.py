"""Facts about operations of TensorFlow, by type. Each is stated here once; the rooms derive their sets from them.

A rule for a type of operation is no fact: it stands where it is written, as in `importer.table` or `importer.formulas`.
"""

_TABLE = {  # {facts: the operations that have exactly these}
    # --- on elements
    "elementwise": """
        Acos Acosh Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0
        BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BitwiseAnd BitwiseOr BitwiseXor
        Bucketize Ceil Complex ComplexAbs Conj Cos Cosh Dawsn Digamma Equal Erfc Erfinv Expint Expm1
        FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FresnelCos FresnelSin Greater
        GreaterEqual Igamma IgammaGradA Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeftShift Less LessEqual
        Lgamma LogicalAnd LogicalNot LogicalOr Ndtri NextAfter NotEqual OnesLike Polygamma PopulationCount
        RandomGammaGrad Real ReciprocalGrad RightShift Rint Round SeluGrad Sin Sinh SoftplusGrad SoftsignGrad Spence
        Tan Xlog1py ZerosLike Zeta
    """,
    "elementwise forwards": """
        Abs ClipByValue EluGrad Erf Floor LeakyReluGrad Log Log1p Pow Reciprocal Relu6Grad ReluGrad Rsqrt RsqrtGrad
        SigmoidGrad Sign Sqrt SqrtGrad Square TanhGrad Xdivy Xlogy
    """,
    "elementwise forwards activates": "Elu Exp LeakyRelu Relu Relu6 Selu Sigmoid Softplus Softsign Tanh",
    "elementwise forwards exact": "Neg",
    "elementwise forwards broadcasts": "DivNoNan MulNoNan SquaredDifference",
    "elementwise forwards broadcasts exact": "Div Maximum Minimum RealDiv Sub",
    "elementwise forwards broadcasts exact commutes": "Mul",
    "elementwise forwards broadcasts exact commutes adds": "Add AddV2",
    "elementwise forwards commutes adds": "AddN",
    "elementwise broadcasts": "SelectV2",
    "elementwise divides": "FloorDiv FloorMod Mod TruncateDiv TruncateMod",
    "elementwise aliases checks fails": "CheckNumerics CheckNumericsV2",
    "elementwise exact converts": "Cast",
    "mostly_elementwise forwards adds": "BiasAdd",
    "mostly_elementwise forwards": "Select",
    "mostly_elementwise aliases": "Bitcast",
    "forwards": "LogSoftmax Softmax",
    # --- buffers and shapes
    "aliases": "Exit InplaceAdd InplaceUpdate LoopCond Merge NextIteration PlaceholderWithDefault Switch",
    "aliases renames": "EnsureShape IdentityN PreventGradient Snapshot StopGradient",
    "aliases renames exact converts": "Identity",
    "aliases regroups converts": "ExpandDims Reshape Squeeze",
    "moves": "BroadcastTo Fill Tile Transpose",
    "joins": "ConcatV2",
    "slices": "Slice StridedSlice",
    "measures": "Rank Shape ShapeN Size",
    # --- sums and products
    "multiplies sums": "BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatMul",
    "convolves sums": "Conv2D Conv2DBackpropFilter Conv2DBackpropInput",
    "convolves": "Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2",
    "convolves_depth": """
        DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    """,
    "reduces sums": "Sum",
    "reduces": "All Any Max Mean Min Prod",
    "sums": "BiasAddGrad",
    # --- rows by number, matrices, and other operations that some values make an error
    "fails numbers": "SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum",
    "fails scatters": "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate",
    "scatters": "ResourceScatterAdd ResourceScatterMax ResourceScatterMin ResourceScatterSub ResourceScatterUpdate",
    "fails": """
        Cholesky DynamicStitch Gather GatherNd GatherV2 InvertPermutation LogMatrixDeterminant MatrixDeterminant
        MatrixInverse MatrixSolve MatrixTriangularSolve Qr Range ScatterNd SelfAdjointEigV2
        SparseSoftmaxCrossEntropyWithLogits Svd
    """,
    # --- states
    "reads": "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape",
    "writes": "AssignVariableOp",
    "writes updates": "AssignAddVariableOp AssignSubVariableOp",
    "begins_anew": """
        Empty StackPopV2 StackPushV2 StackV2 TensorArrayCloseV3 TensorArrayGatherV3 TensorArrayGradV3 TensorArrayReadV3
        TensorArrayScatterV3 TensorArraySizeV3 TensorArrayV3 TensorArrayWriteV3
    """,
    "draws": """
        Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal
        RandomUniform RandomUniformInt TruncatedNormal
    """,
    "draws_without_state": """
        StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2
        StatelessRandomGammaV3 StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
        StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
        StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessShuffle StatelessTruncatedNormal
        StatelessTruncatedNormalV2
    """,
    "samples": """
        AllCandidateSampler FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler
        ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler
    """,
    "looks_up": "LookupTableFindV2 LookupTableSizeV2",
    # --- functions
    "calls": "PartitionedCall StatefulPartitionedCall",
    "chooses": "Case If StatelessCase StatelessIf",
    "repeats": "StatelessWhile While",
    "aliases repeats_in_graph": "Enter",
    "calls_python": "EagerPyFunc PyFunc PyFuncStateless",
}


def _having(fact: str) -> frozenset[str]:
    """Return the types of operations that have a fact."""
    return frozenset(kind for facts, kinds in _TABLE.items() if fact in facts.split() for kind in kinds.split())


TYPES = [kind for kinds in _TABLE.values() for kind in kinds.split()]
ELEMENTWISE = _having("elementwise")  # each element of the result needs one of each operand
MOSTLY_ELEMENTWISE = _having("mostly_elementwise")  # the same, if the result has the shape of the first operand
BROADCASTING = _having("broadcasts")  # their operands may have different shapes
FORWARDING = _having("forwards")  # they write into the buffer of an input that nothing else needs
ALIASES = _having("aliases")  # their result is an input's buffer
RENAMING = _having("renames")  # their results are their inputs
REGROUPING = _having("regroups")  # the axes are other products of the same dimensions
CONVERTING = _having("converts")  # the elements stay in their order
ACTIVATIONS = _having("activates")  # models end in them
EXACT = _having("exact")  # a slice of the result has the same bits, however it is computed
ADDITIONS = _having("adds")
COMMUTING = _having("commutes")
DIVISIONS = _having("divides")  # of whole numbers: those by zero are an error
PRODUCTS = _having("multiplies")
CONVOLUTIONS = _having("convolves")
DEPTHWISE_CONVOLUTIONS = _having("convolves_depth")
REDUCTIONS = _having("reduces")  # over the axes of their second input
SUMS = _having("sums")  # the results for parts of the inputs are addends of the result
MEASURING = _having("measures")  # of their inputs, they need the shapes alone
MOVING = _having("moves")  # they compute nothing
JOINING = _having("joins")
SLICES = _having("slices")
SEGMENTS = _having("numbers")  # reductions of rows, whose numbers ascend
SCATTERS = _having("scatters")  # (table, numbers of rows, rows)
FAILING = _having("fails")  # for some values of their inputs
CHECKS = _having("checks")  # they give what they read, or an error
VARIABLE_READS = _having("reads")
VARIABLE_WRITES = _having("writes")
BEGINNING_ANEW = _having("begins_anew")  # in each run: lists that TensorFlow makes, and names, anew
DRAWS = _having("draws")  # random numbers, by a state of their own
STATELESS_DRAWS = _having("draws_without_state")
SAMPLERS = _having("samples")  # of classes: their kernels count what they have drawn
LOOKUPS = _having("looks_up")  # in a table that is no variable
CALLS = _having("calls")
CONDITIONS = _having("chooses")
LOOPS = _having("repeats")
GRAPH_LOOPS = _having("repeats_in_graph")  # the beginnings of loops in TensorFlow's old control flow
PYTHON = _having("calls_python")
