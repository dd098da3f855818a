"""What classes of pytorch_optimizer and torch do not keep of :mod:`extensions.conformance`, and why; tests fail if one
does."""

_LIBRARY = {
    "check_bias_correction": {"leaves an average uncorrected by design": "emonavi fadam"},
    "check_decays_matter": {
        "moves nothing in its first steps": "sara",
        "the sign that it takes does not depend on its second average": "emofact",
        "its average is scaled by a learning rate that starts at 1e-6": "dadaptlion",
        "its momentum is what it leaves in the gradients, which these steps set anew": "scionlight",
    },
    "check_deepcopy": {"wraps another optimizer and is not one by torch's rules": "magma"},
    "check_double_precision": {"mixes types, or has constants for float32 alone": "fadam gravity splus"},
    "check_dtypes": {
        "mixes types, or has constants for float32 alone": "adai fadam",
        "moves nothing in its first steps": "radam sara schedulefreeradam",
        "steps at the library's own learning rate are below what bfloat16 resolves": (
            "adamod dadaptadagrad dadaptadam dadaptlion dadaptsgd dualadam grokfastadamw lars pnm prodigy sgdw "
            "simplifiedademamix"
        ),
    },
    "check_eps_is_outside_the_root": {"its eps is inside of the root by design": "adasmooth"},
    "check_learning_rate_of_the_group": {
        "AdamW's part has options of its own, adamw_lr and adamw_wd, and groups must say use_muon": (
            "adago adamuon muon muonclip normuon"
        ),
        "divides by the learning rate, bounds it from below or scales it": (
            "apollodqn ftrl gravity grokfastadamw nero srmm torch.rprop"
        ),
        "moves nothing in its first steps": "radam sara schedulefreeradam",
    },
    "check_learns": {
        "learns slowly at the learning rates around the library's own": (
            "adai adamod ano grokfastadamw lion pid pnm qhm ranger sgd sgdp sgdw simplifiedademamix torch.radam "
            "torch.sgd"
        ),
        "moves nothing in its first steps": "radam sara schedulefreeradam",
    },
    "check_loading_leaves_what_it_loads": {"sets up state when it loads none": "flashadamw"},
    "check_loads_by_position": {
        "its state dict has entries that belong to no parameter": "emofact emolynx emonavi madgrad spam",
        "wraps another optimizer and is not one by torch's rules": "magma",
    },
    "check_memory_layouts": {
        "decompositions, or scales that they round, differ with the layout": "alice gravity soap splus",
        "view() of what is not contiguous raises": "adamp sgdp",
    },
    "check_missing_gradients": {
        "a step without gradients raises": "adai adams",
        "moves nothing in its first steps": "radam sara schedulefreeradam",
    },
    "check_pickle": {
        "holds a function that pickle does not find": "adopt",
        "wraps another optimizer and is not one by torch's rules": "magma",
    },
    "check_refuses_bad_values": {"does not check momentum": "sgdp"},
    "check_reset": {
        "counts steps, or keeps averages, outside of its state": (
            "adabelief adabound adagc adago adalite adamax adamc adamg adamod adamp adams adamuon adamwsn adan "
            "adanorm adapnm ademamix adopt aida amos ano apollo apollodqn avagrad dadaptadam dadaptadan "
            "dadaptsgd dash diffgrad dualadam exadam fadam fira flashadamw focus galore grams gravity "
            "grokfastadamw kron lamb laprop mars msvag muon muonclip nero normuon padam prodigy ranger sara "
            "schedulefreeadamw schedulefreeradam schedulefreesgd soap spam splus srmm stableadamw stablespam "
            "vsgd yogi"
        ),
        "wraps another optimizer and is not one by torch's rules": "magma",
    },
    "check_resumes_bitwise": {"its first step is not in the state dict": "apollodqn"},
    "check_schedulers": {
        "AdamW's part has options of its own, adamw_lr and adamw_wd, and groups must say use_muon": (
            "adago adamuon muon muonclip normuon"
        ),
        "writes the learning rate itself, or keeps state by the value of momentum": "aggmo flashadamw grokfastadamw",
    },
    "check_shapes": {
        "a tensor without elements raises": (
            "adago adamp adamuon avagrad gravity kron muon muonclip nero normuon rose scion scionlight sgdp "
            "shampoo sm3 stablespam torch.adafactor"
        ),
        "moves nothing in its first steps": "radam sara schedulefreeradam",
    },
    "check_state_dict_has_torchs_format": {
        "its state dict has entries that belong to no parameter": "emofact emolynx emonavi madgrad spam stablespam",
        "wraps another optimizer and is not one by torch's rules": "magma",
    },
    "check_step_hooks": {
        "runs hooks once more for the class it derives from": "muonclip",
        "wraps another optimizer and is not one by torch's rules": "magma",
    },
    "check_weight_decay": {
        "AdamW's part has options of its own, adamw_lr and adamw_wd, and groups must say use_muon": (
            "adago adamuon muon muonclip normuon"
        ),
        "moves nothing in its first steps": "radam sara schedulefreeradam",
    },
    "check_weight_decay_shrinks": {
        "divides its decay by the mean of its averages, which is 0 without gradients": "adams"
    },
}


LIBRARY = {
    (name if "." in name else f"pytorch_optimizer.{name}", check): reason
    for check, reasons in _LIBRARY.items()
    for reason, names in reasons.items()
    for name in names.split()
}
"""Reason by qualified name and check, of the checks that torch's own optimizers keep."""
