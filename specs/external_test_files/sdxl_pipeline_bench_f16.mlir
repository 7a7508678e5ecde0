// Stable Diffusion XL from tokens to a picture, as one function over three modules that are compiled apart.
// IREE's runtime resolves the private functions by name in the modules loaded before this one.
module @sdxl_compiled_pipeline {
  // Prompt encoder: embeddings of the prompt and of the negative prompt, both stacked in dimension 0.
  func.func private @compiled_clip.encode_prompts(
      tensor<1x64xi64>, tensor<1x64xi64>, tensor<1x64xi64>, tensor<1x64xi64>)
      -> (tensor<2x64x2048xf16>, tensor<2x1280xf16>)

  // Scheduled UNet: the noisy latents, the size conditioning and the number of steps; then one denoising step.
  func.func private @compiled_scheduled_unet.run_initialize(tensor<1x4x128x128xf16>)
      -> (tensor<1x4x128x128xf16>, tensor<2x6xf16>, tensor<i64>)
  func.func private @compiled_scheduled_unet.run_forward(
      tensor<1x4x128x128xf16>, tensor<2x64x2048xf16>, tensor<2x1280xf16>, tensor<2x6xf16>, tensor<1xf16>, tensor<1xi64>)
      -> tensor<1x4x128x128xf16>

  // VAE decoder: latents to a picture.
  func.func private @compiled_vae.main(tensor<1x4x128x128xf16>) -> tensor<1x3x1024x1024xf16>

  func.func @tokens_to_image(
      %latents: tensor<1x4x128x128xf16>, %guidance_scale: tensor<1xf16>,
      %prompt_1: tensor<1x64xi64>, %prompt_2: tensor<1x64xi64>,
      %negative_1: tensor<1x64xi64>, %negative_2: tensor<1x64xi64>) -> tensor<1x3x1024x1024xf16> {
    %text, %pooled = func.call @compiled_clip.encode_prompts(%prompt_1, %prompt_2, %negative_1, %negative_2)
        : (tensor<1x64xi64>, tensor<1x64xi64>, tensor<1x64xi64>, tensor<1x64xi64>)
        -> (tensor<2x64x2048xf16>, tensor<2x1280xf16>)
    %noisy, %sizes, %step_count = func.call @compiled_scheduled_unet.run_initialize(%latents)
        : (tensor<1x4x128x128xf16>) -> (tensor<1x4x128x128xf16>, tensor<2x6xf16>, tensor<i64>)

    %first = arith.constant 0 : index
    %stride = arith.constant 1 : index
    %count = tensor.extract %step_count[] : tensor<i64>
    %end = arith.index_cast %count : i64 to index
    %denoised = scf.for %i = %first to %end step %stride iter_args(%current = %noisy) -> (tensor<1x4x128x128xf16>) {
      %number = arith.index_cast %i : index to i64
      %step = tensor.from_elements %number : tensor<1xi64>
      %next = func.call @compiled_scheduled_unet.run_forward(%current, %text, %pooled, %sizes, %guidance_scale, %step)
          : (tensor<1x4x128x128xf16>, tensor<2x64x2048xf16>, tensor<2x1280xf16>, tensor<2x6xf16>, tensor<1xf16>, tensor<1xi64>)
          -> tensor<1x4x128x128xf16>
      scf.yield %next : tensor<1x4x128x128xf16>
    }

    %picture = func.call @compiled_vae.main(%denoised) : (tensor<1x4x128x128xf16>) -> tensor<1x3x1024x1024xf16>
    return %picture : tensor<1x3x1024x1024xf16>
  }
}
