// Registers the simulated accelerator with torch, as its backend PrivateUse1: memory, streams, events, copies, and
// every other operation by the CPU's implementation, run on a stream.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#include "device.h"

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::Stream;
using torch::jit::Stack;

constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local DeviceIndex current_device = 0;
thread_local int current_stream[simulated::kDevices] = {};

int index_of(Device device) { return device.has_index() ? device.index() : current_device; }

void raise_errors() {
    const std::string error = simulated::take_error();
    TORCH_CHECK(error.empty(), "on a stream of the simulated accelerator: ", error);
}

// ---- streams and events

struct Event {
    simulated::Recorded moment;
    int device = 0;
    bool timed = false;
};

simulated::Recorded moment_of(void* event) { return event ? static_cast<Event*>(event)->moment : nullptr; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return kType; }
    Device exchangeDevice(Device device) const override {
        return Device(kType, std::exchange(current_device, index_of(device)));
    }
    Device getDevice() const override { return Device(kType, current_device); }
    void setDevice(Device device) const override {
        TORCH_CHECK(device.index() < simulated::kDevices, "there is no ", device);
        uncheckedSetDevice(device);
    }
    void uncheckedSetDevice(Device device) const noexcept override { current_device = index_of(device); }
    DeviceIndex deviceCount() const noexcept override { return simulated::kDevices; }

    static Stream stream(Device device, int number) {
        return Stream(Stream::UNSAFE, Device(kType, index_of(device)), number);
    }
    Stream getStream(Device device) const override { return stream(device, current_stream[index_of(device)]); }
    Stream getDefaultStream(Device device) const override { return stream(device, 0); }
    Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
    Stream getNewStream(Device device, int) const override {
        static std::atomic<int> next[simulated::kDevices];
        return stream(device, 1 + next[index_of(device)]++ % (simulated::kStreams - 1));
    }
    Stream exchangeStream(Stream stream) const override {
        int& current = current_stream[index_of(stream.device())];
        return this->stream(stream.device(), std::exchange(current, stream.id()));
    }
    bool queryStream(const Stream& stream) const override {
        return simulated::is_idle(stream.device_index(), stream.id());
    }
    void synchronizeStream(const Stream& stream) const override {
        simulated::synchronize(stream.device_index(), stream.id());
        raise_errors();
    }
    void synchronizeDevice(const DeviceIndex device) const override {
        simulated::synchronize_device(device);
        raise_errors();
    }
    void recordDataPtrOnStream(const c10::DataPtr& memory, const Stream& stream) const override {
        simulated::record_use(memory.get(), stream.device_index(), stream.id());
    }

    void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag flag) const override {
        if (*event == nullptr) *event = new Event;
        auto* ours = static_cast<Event*>(*event);
        ours->moment = simulated::record(stream.device_index(), stream.id());
        ours->device = stream.device_index();
        ours->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    }
    void block(void* event, const Stream& stream) const override {
        if (auto moment = moment_of(event)) simulated::enqueue_wait(stream.device_index(), stream.id(), moment);
    }
    bool queryEvent(void* event) const override {
        auto moment = moment_of(event);
        return moment == nullptr || moment->over();
    }
    void synchronizeEvent(void* event) const override {
        if (auto moment = moment_of(event)) moment->wait();
        raise_errors();
    }
    double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
        for (void* event : {begin, end}) {
            TORCH_CHECK(event && static_cast<Event*>(event)->timed, "the event wasn't made with enable_timing");
            TORCH_CHECK(moment_of(event)->over(), "both events must be completed");
        }
        return (moment_of(end)->seconds() - moment_of(begin)->seconds()) * 1e3;
    }
    void destroyEvent(void* event, const DeviceIndex) const noexcept override {
        delete static_cast<Event*>(event);
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- memory

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct DeviceMemory final : AllocatorBase {
    c10::DataPtr allocate(size_t bytes) override {
        const Device device(kType, current_device);
        if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
        try {
            void* memory = simulated::allocate(current_device, current_stream[current_device], bytes);
            return {memory, memory, &simulated::release, device};
        } catch (const std::bad_alloc&) {
            TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated accelerator out of memory: no ", bytes, " bytes");
        }
    }
    c10::DeleterFnPtr raw_deleter() const override { return &simulated::release; }
    void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not by address"); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(const c10::DataPtr& memory, Stream stream) override {
        simulated::record_use(memory.get(), stream.device_index(), stream.id());
    }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override { return {}; }
    void resetAccumulatedStats(DeviceIndex) override {}
    void resetPeakStats(DeviceIndex) override {}
#endif
};

DeviceMemory& device_memory() {
    static auto* memory = new DeviceMemory;
    return *memory;
}

struct HostMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::kCPU};
        void* memory = simulated::allocate_host(bytes);
        return {memory, memory, &simulated::release_host, c10::kCPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &simulated::release_host; }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Draws seeds, one for each operation, in the order in which they are called; numbers are drawn on the stream.
struct Generator final : at::CPUGeneratorImpl {
    explicit Generator(DeviceIndex index) {
        device_ = Device(kType, index);
        key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
    }
};

const at::Generator& default_generator(int index) {
    static auto* all = [] {
        auto* made = new std::vector<at::Generator>;
        for (int i = 0; i < simulated::kDevices; ++i) made->push_back(at::make_generator<Generator>(i));
        return made;
    }();
    return all->at(index < 0 ? current_device : index);
}

uint64_t draw_seed(const std::optional<at::Generator>& given, int device) {
    at::Generator generator = given && given->defined() ? *given : default_generator(device);
    std::lock_guard lock(generator.mutex());
    return static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl())->random64();
}

struct Hooks final : at::PrivateUse1HooksInterface {
    void init() const override {}
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return simulated::kDevices; }
    void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice(Device(kType, device)); }
    DeviceIndex getCurrentDevice() const override { return current_device; }
    DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current_device, device); }
    DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
    const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
    at::Generator getNewGenerator(DeviceIndex device) const override { return at::make_generator<Generator>(device); }
    Device getDeviceFromPtr(void* memory) const override {
        return Device(kType, static_cast<DeviceIndex>(simulated::device_of(memory)));
    }
    bool isPinnedPtr(const void* memory) const override { return simulated::is_pinned(memory); }
    c10::Allocator* getPinnedMemoryAllocator() const override {
        static auto* memory = new HostMemory;
        return memory;
    }
};

// ---- operations

// The memory of a tensor as a kernel sees it. It keeps nothing alive, as a kernel doesn't.
Tensor seen_by_kernels(const Tensor& tensor) {
    void* memory = simulated::kernel_address(tensor.data_ptr());
    return at::from_blob(memory, tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

Tensor on_host(const Tensor& tensor) {
    if (tensor.device().type() == kType) return seen_by_kernels(tensor);
    Tensor copy = tensor.clone();  // read when the operation is called
    const bool number = tensor.unsafeGetTensorImpl()->is_wrapped_number();  // matters for the type of results
    if (number) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
}

Tensor shape_of(const Tensor& tensor) {
    if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

template <typename Function>
IValue with_tensors(const IValue& value, Device device, Function function) {
    if (value.isTensor()) return value.toTensor().defined() ? IValue(function(value.toTensor())) : value;
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) list.push_back(function(tensor));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
            list.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : std::nullopt);
        }
        return list;
    }
    return value.isDevice() ? IValue(device) : value;
}

std::vector<Tensor> tensors_in(const IValue& value) {
    if (value.isTensor()) return {value.toTensor()};
    if (value.isTensorList()) return value.toTensorVector();
    return {};
}

std::optional<Device> device_of(const Stack& arguments) {
    std::optional<Device> found;
    for (const IValue& value : arguments) {
        with_tensors(value, c10::kCPU, [&](const Tensor& tensor) {
            if (!found && tensor.device().type() == kType) found = tensor.device();
            return tensor;
        });
        if (!found && value.isDevice() && value.toDevice().type() == kType) found = value.toDevice();
    }
    return found;
}

Tensor made_like(const Tensor& meta, Device device) {
    return meta.defined() ? at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device)) : meta;
}

void push(Device device, simulated::Entry entry, size_t copied_bytes = 0) {
    simulated::enqueue(device.index(), current_stream[device.index()], std::move(entry), copied_bytes);
}

// A call of an operation: its arguments, and its results as soon as it has run.
struct Call {
    c10::OperatorHandle op;
    Stack stack;

    void run() { run(op, stack); }

    // Arguments are kept until the results are taken: an operation that returns several of them returns references,
    // which torch copies after it has dropped the arguments.
    static void run(const c10::OperatorHandle& op, Stack& stack) {
        const Stack arguments = stack;
        op.callBoxed(&stack);
    }

    bool returns_arguments(size_t i) const {
        auto* alias = op.schema().returns()[i].alias_info();
        return alias != nullptr && alias->isWrite();
    }

    // The argument that result `i` is.
    IValue argument_of(size_t i, const Stack& arguments) const {
        const auto& wanted = op.schema().returns()[i].alias_info()->beforeSets();
        for (size_t k = 0; k < arguments.size(); ++k) {
            auto* alias = op.schema().arguments()[k].alias_info();
            if (alias != nullptr && alias->isWrite() && alias->beforeSets() == wanted) return arguments[k];
        }
        TORCH_CHECK(false, op.schema(), " returns an argument that isn't found");
    }
};

// The results of `call` by torch's functions for shapes, or nothing if these can't say without the values.
std::optional<Stack> shapes_of(const Call& call, const Stack& arguments) {
    for (const auto& result : call.op.schema().returns()) {
        const auto kind = result.type()->kind();
        if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return std::nullopt;
    }
    Stack stack;
    for (const IValue& value : arguments) stack.push_back(with_tensors(value, c10::kMeta, shape_of));
    for (IValue& value : stack) {
        if (value.isGenerator()) value = IValue();
    }
    try {
        at::AutoDispatchBelowADInplaceOrView guard;
        Call::run(call.op, stack);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    return stack;
}

void fill_from(const std::vector<Tensor>& to, const IValue& value) {
    const std::vector<Tensor> from = tensors_in(value);
    for (size_t i = 0; i < to.size(); ++i) {
        // The statistics that a normalization kept for a backward pass that won't come are empty on the CPU.
        if (to[i].defined() && from.at(i).numel() > 0) to[i].copy_(from.at(i));
    }
}

// The arguments as the CPU's implementation gets them on the stream.
Stack host_arguments(const c10::OperatorHandle& op, const Stack& arguments, Device device) {
    Stack stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
        IValue value = with_tensors(arguments[i], c10::kCPU, on_host);
        if (op.schema().arguments()[i].name() == "generator") {
            auto given = value.isNone() ? std::nullopt : std::optional(value.toGenerator());
            value = at::make_generator<at::CPUGeneratorImpl>(draw_seed(given, device.index()));
        }
        stack.push_back(std::move(value));
    }
    return stack;
}

// Queues a call whose results have known shapes.
void queue_call(const std::shared_ptr<Call>& call, const std::vector<IValue>& made, Device device) {
    std::vector<std::vector<Tensor>> targets;
    for (size_t i = 0; i < made.size(); ++i) {
        targets.emplace_back();
        if (call->returns_arguments(i)) continue;
        for (const Tensor& tensor : tensors_in(made[i])) {
            targets[i].push_back(tensor.defined() ? seen_by_kernels(tensor) : tensor);
        }
    }
    push(device, [call, targets = std::move(targets)] {
        call->run();
        for (size_t i = 0; i < targets.size(); ++i) fill_from(targets[i], call->stack[i]);
    });
}

// Queues a call, and waits for it: its results depend on values, or it has no function for shapes.
void wait_for_call(const std::shared_ptr<Call>& call, std::vector<IValue>& made, Device device) {
    std::exception_ptr error;
    push(device, [call, &error] {
        try {
            call->run();
        } catch (...) {
            error = std::current_exception();
        }
    });
    simulated::synchronize(device.index(), current_stream[device.index()]);
    if (error) std::rethrow_exception(error);
    raise_errors();
    for (size_t i = 0; i < made.size(); ++i) {
        if (call->returns_arguments(i)) continue;
        made[i] = with_tensors(call->stack[i], device, [&](const Tensor& value) {
            Tensor result = made_like(value, device);
            if (value.defined()) push(device, [to = seen_by_kernels(result), value] { to.copy_(value); });
            return result;
        });
    }
}

void run_on_stream(const c10::OperatorHandle& op, Stack* stack) {
    auto call = std::make_shared<Call>(Call{op, {}});
    const Stack arguments(stack->end() - op.schema().arguments().size(), stack->end());
    stack->resize(stack->size() - arguments.size());
    const auto found = device_of(arguments);
    const Device device(kType, found ? index_of(*found) : current_device);
    const c10::DeviceGuard guard(device);
    const auto shapes = shapes_of(*call, arguments);
    std::vector<IValue> made(op.schema().returns().size());
    for (size_t i = 0; i < made.size(); ++i) {
        if (call->returns_arguments(i)) {
            made[i] = call->argument_of(i, arguments);
            if (shapes && made[i].isTensor() && made[i].toTensor().sizes() != (*shapes)[i].toTensor().sizes()) {
                made[i].toTensor().resize_((*shapes)[i].toTensor().sizes());  // an `out=` of another shape
            }
        } else if (shapes) {
            made[i] = with_tensors((*shapes)[i], device, [&](const Tensor& meta) { return made_like(meta, device); });
        }
    }
    call->stack = host_arguments(op, arguments, device);
    if (shapes) queue_call(call, made, device);
    else wait_for_call(call, made, device);
    for (IValue& value : made) stack->push_back(std::move(value));
}

// An operation that CPUs have by another name.
void run_convolution(const c10::OperatorHandle&, Stack* stack) {
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    run_on_stream(op, stack);
}

void run_convolution_backward(const c10::OperatorHandle&, Stack* stack) {
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    const auto weight = stack->end() - 8;
    const auto mask = stack->back().toBoolList();
    IValue sizes;
    if (mask[2]) sizes = std::vector<int64_t>{weight->toTensor().size(0)};
    stack->insert(weight + 1, sizes);
    run_on_stream(op, stack);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
    if (to.numel() == 0) return to;
    const Device device = to.is_cpu() ? from.device() : to.device();
    const c10::DeviceGuard guard(device);
    const int stream = current_stream[device.index()];
    if (from.device().type() == kType && to.device().type() == kType && from.device() != to.device()) {
        const int other = from.device().index(), there = current_stream[other];
        simulated::enqueue_wait(device.index(), stream, simulated::record(other, there));
        push(device, [to = seen_by_kernels(to), from = seen_by_kernels(from)] { to.copy_(from); }, to.nbytes());
        simulated::enqueue_wait(other, there, simulated::record(device.index(), stream));
    } else if (!from.is_cpu() && !to.is_cpu()) {
        push(device, [to = seen_by_kernels(to), from = seen_by_kernels(from)] { to.copy_(from); });
    } else {
        const Tensor& host = from.is_cpu() ? from : to;
        const bool late = non_blocking && host.dtype() == (from.is_cpu() ? to : from).dtype() &&
                          from.sizes() == to.sizes() && from.strides() == to.strides() &&
                          simulated::is_pinned(host.data_ptr());
        Tensor source = from.is_cpu() ? (late ? seen_by_kernels(from) : from.clone()) : seen_by_kernels(from);
        Tensor target = seen_by_kernels(to);
        push(device, [source = std::move(source), target] { target.copy_(source); }, to.nbytes());
        if (late) {
            simulated::record_copy(host.data_ptr(), device.index(), stream);
        } else if (!non_blocking || to.is_cpu()) {
            simulated::synchronize(device.index(), stream);
            raise_errors();
        }
    }
    return to;
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_memory(),
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                             &device_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
    auto* impl = self.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
    if (format) impl->empty_tensor_restride(*format);
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const size_t wanted = (self.storage_offset() + self.numel()) * self.itemsize();
    if (wanted <= storage->nbytes()) return self;
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr larger = device_memory().allocate(wanted);
    if (storage->nbytes() > 0) {
        void *to = simulated::kernel_address(larger.get()), *from = simulated::kernel_address(storage->data());
        push(self.device(), [to, from, n = storage->nbytes()] { std::memcpy(to, from, n); });
    }
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(wanted);
    return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
    auto* impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(storage));
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                offset.expect_int());
    return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
    const int64_t items = storage.nbytes() / self.itemsize();
    return set_storage(self, std::move(storage), 0, c10::SymInt(items), c10::SymInt(1));
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
    return set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

void record_stream(Tensor& self, Stream stream) {
    simulated::record_use(self.storage().data_ptr().get(), stream.device_index(), stream.id());
}

// The CPU's draws from the CPU's default generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
    Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
    if (train.has_value() && !*train) return {input.clone(), mask.fill_(true)};
    mask.bernoulli_(1 - p);
    return {input.mul(mask).mul(p == 1 ? 0 : 1 / (1 - p)), mask};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_stream>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", [](const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                            std::optional<c10::SymInt> offset) {
        return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                 offset ? std::optional(offset->expect_int()) : std::nullopt);
    });
    m.impl("view", [](const Tensor& self, c10::SymIntArrayRef size) {
        return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
    });
    m.impl("_reshape_alias", [](const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
        return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
    });
    m.impl("unfold", [](const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
        return at::native::unfold(self, dimension, size, step);
    });
    m.impl("resize_", resize);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("set_.source_Storage", set_whole_storage);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("record_stream", record_stream);
    m.impl("native_dropout", native_dropout);
    m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_convolution>());
    m.impl("convolution_backward_overrideable",
           torch::CppFunction::makeFromBoxedFunction<&run_convolution_backward>());
}

// ---- what the Python module calls

TORCH_LIBRARY(simulated, m) {
    m.def("configure(int seed, float mean_delay, float copy_bytes_per_second, bool forgetful) -> ()",
          [](int64_t seed, double mean_delay, double rate, bool forgetful) {
              simulated::configure({static_cast<uint64_t>(seed), mean_delay, rate, forgetful});
          });
    m.def("busy(float seconds) -> ()", [](double seconds) {
        simulated::enqueue_busy(current_device, current_stream[current_device], seconds);
    });
    m.def("take_error() -> str", &simulated::take_error);
    m.def("was_forked_in_use() -> bool", &simulated::was_forked_in_use);
    m.def("used_bytes(int device) -> int", [](int64_t device) -> int64_t { return simulated::used_bytes(device); });
    m.def("peak_bytes(int device, bool reset) -> int",
          [](int64_t device, bool reset) -> int64_t { return simulated::peak_bytes(device, reset); });
    m.def("manual_seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
        auto generator = default_generator(device);
        std::lock_guard lock(generator.mutex());
        generator.set_current_seed(seed);
    });
    m.def("get_rng_state(int device) -> Tensor", [](int64_t device) {
        auto generator = default_generator(device);
        std::lock_guard lock(generator.mutex());
        return generator.get_state();
    });
    m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const Tensor& state) {
        auto generator = default_generator(device);
        std::lock_guard lock(generator.mutex());
        generator.set_state(state);
    });
}

[[maybe_unused]] const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kType, &device_memory());
    return true;
}();

}  // namespace
